"""A server of made files, and a small data set in the layout of MNIST to get from it."""

import contextlib
import gzip
import hashlib
import http.server
import threading
import time

import numpy as np

from fedax.data.catalogue import PRODUCTS, SOURCES, Expected, Product, Source, images
from fedax.data.downloads.files import Published

NAME = "tiny"
TRAIN, TEST = 40, 10


class Server:
    """Serves what `files` says: path -> bytes, or a function of the handler.

    Attributes:
      asked: the paths, in the order of the requests, with the Range if there was one.
    """

    def __init__(self):
        self.files, self.asked = {}, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append((self.path, self.headers.get("Range")))
                answer = outer.files.get(self.path)
                with contextlib.suppress(ConnectionError):
                    if callable(answer):
                        answer(self)
                    elif answer is None:
                        self.send_error(404)
                    else:
                        send(self, answer)

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def send(handler, content, length=None, status=200):
    """Answers with this content, whose length is said to be another one."""
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(content) if length is None else length))
    handler.end_headers()
    handler.wfile.write(content)


def cut(content, after):
    """An answer that breaks off."""
    return lambda handler: send(handler, content[:after], len(content))


def silent(handler):
    """An answer that does not come."""
    time.sleep(1.0)


def idx(array):
    """An array of bytes as an IDX file."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def tiny_files():
    """File name -> bytes, not packed."""
    rng = np.random.default_rng(0)
    arrays = {}
    for prefix, count in (("train", TRAIN), ("t10k", TEST)):
        arrays[f"{prefix}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 5, 4))
        arrays[f"{prefix}-labels-idx1-ubyte"] = np.arange(count) % 10
    return {name: idx(array) for name, array in arrays.items()}


def packed(files):
    """The files packed with gzip, under names that say so."""
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in files.items()}


def digest(content):
    return hashlib.sha256(content).hexdigest()


def tiny_arrays(files, prefix):
    """What must come of the files: x and y."""
    x = np.frombuffer(files[f"{prefix}-images-idx3-ubyte"][16:], np.uint8).reshape(-1, 5, 4, 1)
    y = np.frombuffer(files[f"{prefix}-labels-idx1-ubyte"][8:], np.uint8).astype(np.int32)
    return x, y


def expected(files, prefix):
    x, y = tiny_arrays(files, prefix)
    return Expected(
        1, len(y), tuple(np.bincount(y).tolist()), (round(float(x.mean()) / 255, 4),),
        tuple(y[:5].tolist()), {"x": digest(x.tobytes()), "y": digest(y.tobytes())},
    )


def publish(monkeypatch, urls, package=None):
    """Puts the data set `tiny` into the catalogue; returns its published files."""
    files = tiny_files()
    archives = packed(files)
    monkeypatch.setitem(SOURCES, NAME, Source(
        tuple(
            Published(name, digest(content), len(content), tuple(url + name for url in urls))
            for name, content in archives.items()
        ),
        (images._IDX,), package=package, instead="No package carries tiny.",
    ))
    monkeypatch.setitem(PRODUCTS, NAME, Product(
        NAME, "made images", expected(files, "train"), expected(files, "t10k")
    ))
    return archives
