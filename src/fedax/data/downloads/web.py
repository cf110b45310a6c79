"""Downloads over HTTP, through the proxies of the environment."""

from __future__ import annotations

import contextlib
import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from fedax.data.downloads.files import (
    PIECE_BYTES,
    Progress,
    Published,
    nothing,
    require_published,
)
from fedax.data.errors import DataError
from fedax.outside.version import __version__

# A server that sends nothing for so long is given up, or less than this in that time.
SILENT_SECONDS = 30.0
FEWEST_BYTES = 1000
# A connection that breaks is taken up again where it broke, so many times in all.
ATTEMPTS = 3
PAUSE_SECONDS = 1.0
# Of a file whose size was not published.
MOST_BYTES = 50 * 10**9


class UnreachableError(DataError):
    """No server returned the file; another source may have it."""


class _BrokenError(Exception):
    """The connection broke on the way, so what is left may still come."""


def download(published: Published, folder: Path, progress: Progress = nothing) -> Path:
    """Downloads a file and compares it with its published checksum.

    Args:
      published: the file; of its URLs the first that gives it is taken.
      folder: where to; no file of that name is in it.
      progress: of the download, in bytes.

    Returns:
      The file.

    Raises:
      UnreachableError: if no server returned it.
      DataError: if it differs from the published file; it is removed then.
      OSError: if the disk failed.
    """
    failures: list[DataError] = []
    for url in published.urls:
        path = folder / published.name
        try:
            _fetch(url, path, published, progress)
            require_published(path, published, host_of(url), progress)
        except DataError as error:
            path.unlink(missing_ok=True)
            failures.append(error)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        else:
            return path
    # What came and was wrong says more than a server that was silent.
    raise min(failures, key=lambda error: isinstance(error, UnreachableError))


def host_of(url: str) -> str:
    """The name of the host that a URL leads to."""
    return urllib.parse.urlsplit(url).hostname or url


def _fetch(url: str, path: Path, published: Published, progress: Progress) -> None:
    """Downloads a file in as many connections as it takes, up to `ATTEMPTS`."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _fetch_rest(url, path, published, progress)
        except _BrokenError as broken:
            if attempt == ATTEMPTS:
                got = path.stat().st_size if path.exists() else 0
                raise UnreachableError(
                    f"The download of {published.name} from {host_of(url)} broke off after "
                    f"{got:,} bytes{_of(published)}, {ATTEMPTS} times: {broken}."
                ) from None
            time.sleep(PAUSE_SECONDS)
        else:
            return


def _fetch_rest(url: str, path: Path, published: Published, progress: Progress) -> None:
    """Downloads what is missing of a file in one connection.

    Raises:
      UnreachableError: the server does not give it.
      _BrokenError: the connection broke.
    """
    got = path.stat().st_size if path.exists() else 0
    headers = {"User-Agent": f"fedax/{__version__}"}
    if got:
        headers["Range"] = f"bytes={got}-"
    most = MOST_BYTES if published.num_bytes is None else published.num_bytes
    try:
        opener = urllib.request.build_opener()  # with the proxies of the environment as it is now
        request = urllib.request.Request(url, headers=headers)
        with contextlib.closing(opener.open(request, timeout=SILENT_SECONDS)) as answer:
            if got and answer.status != http.HTTPStatus.PARTIAL_CONTENT:
                path.unlink()
                got = 0
            left = answer.headers.get("Content-Length", "")
            total = got + int(left) if left.isascii() and left.isdigit() else 0
            if published.num_bytes is not None and total not in (0, published.num_bytes):
                raise DataError(
                    f"{host_of(url)} has {total:,} bytes as {published.name}, but "
                    f"{published.num_bytes:,} were published: it is a different file. It was not "
                    "used."
                )
            since, then = got, time.monotonic()
            with path.open("ab") as file:
                while piece := _read(answer):
                    got += len(piece)
                    now = time.monotonic()
                    if now - then > SILENT_SECONDS:
                        if got - since < FEWEST_BYTES:
                            raise _BrokenError(
                                f"it sent only {got - since} bytes in {SILENT_SECONDS:g} s"
                            )
                        since, then = got, now
                    if got > most:
                        raise DataError(
                            f"{host_of(url)} sends more than {most:,} bytes as {published.name}, "
                            "so it is a different file. It was not used."
                        )
                    file.write(piece)
                    progress(f"downloading {published.name}", got, published.num_bytes or total)
            if total and got < total:
                raise _BrokenError(f"{total - got:,} bytes are missing")
    except urllib.error.HTTPError as error:
        with contextlib.closing(error):
            words = " ".join(str(error.reason).split())[:100]  # of a redirect loop, many lines
            raise UnreachableError(
                f"{host_of(url)} did not return {published.name}: status {error.code} ({words})."
            ) from None
    except urllib.error.URLError as error:
        raise _unreachable(url, error.reason) from None
    except (TimeoutError, http.client.HTTPException, ConnectionError) as error:
        raise _broken(error) from None


def _read(answer: http.client.HTTPResponse) -> bytes:
    """The next piece; what fails here is the connection, not the disk."""
    try:
        return answer.read1(PIECE_BYTES)  # what is there, so that it is kept if no more comes
    except (OSError, http.client.HTTPException) as error:
        raise _broken(error) from None


def _broken(error: Exception) -> _BrokenError:
    if isinstance(error, TimeoutError):
        return _BrokenError(f"it sent nothing for {SILENT_SECONDS:g} s")
    return _BrokenError(_words(error))


def _unreachable(url: str, reason: object) -> UnreachableError:
    silent = isinstance(reason, TimeoutError)
    words = f"it did not answer for {SILENT_SECONDS:g} s" if silent else _words(reason)
    return UnreachableError(f"Cannot reach {host_of(url)}: {words}.")


def _words(reason: object) -> str:
    words = (reason.strerror if isinstance(reason, OSError) else None) or str(reason)
    return " ".join(words.split()).rstrip(".")[:200] or type(reason).__name__


def _of(published: Published) -> str:
    return "" if published.num_bytes is None else f" of {published.num_bytes:,}"
