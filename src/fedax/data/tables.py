"""The columns of a data frame or of a Hugging Face data set as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fedax.data.categories import given_categories, numbered, own_categories
from fedax.data.encoded_images import is_image, most_bytes, opened_image
from fedax.data.images import kind_of_pixels, pixels_of
from fedax.validate import unknown

# Array name -> the column, or the columns that stand side by side in it.
Columns: TypeAlias = Sequence[str] | Mapping[str, str | Sequence[str]]


def frame_arrays(
    frame: Any, client_column: str, columns: Columns | None, categories: Any = None
) -> tuple[dict[str, np.ndarray], Any, dict[str, tuple[Any, ...]]]:
    """The arrays of a pandas or polars frame, its client column and its categories.

    See `FederatedDataset.from_frame`.
    """
    is_lazy = hasattr(frame, "collect") and not hasattr(frame, "__len__")
    if is_lazy or not (hasattr(frame, "columns") and hasattr(frame, "__getitem__")):
        hint = "; call its collect() first" if is_lazy else ""
        raise ValueError(
            f"from_frame takes a data frame of pandas or polars, not a {_kind(frame)}{hint}."
        )
    chosen = choose(list(frame.columns), client_column, columns)
    _refuse_missing(frame[client_column], client_column)
    given, used = given_categories(categories, list(frame.columns)), {}

    def read(name: str) -> np.ndarray:
        series = frame[name]
        own = own_categories(series)
        if name not in given and own is None:
            return _of_series(series, name)
        _refuse_missing(series, name)
        if name not in given and hasattr(categories, "arrays"):
            raise ValueError(
                f"The column {name!r} is categorical, but the training set has no categories for "
                "it."
            )
        used[name] = given.get(name, own)
        return numbered(series.to_list(), used[name], name)

    return stacked_columns(chosen, read), frame[client_column], used


def dataset_arrays(
    dataset: Any, client_column: str, columns: Columns | None, categories: Any = None
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray | None, dict[str, tuple[Any, ...]]]:
    """The arrays of a `datasets.Dataset`, clients, their names if those are codes, categories."""
    names = getattr(dataset, "column_names", None)
    if isinstance(names, Mapping):
        raise ValueError(
            f"from_huggingface takes one split, not a {_kind(dataset)}: pass one of "
            + ", ".join(f"dataset[{split!r}]" for split in names) + "."
        )
    if not (names and hasattr(dataset, "select_columns") and hasattr(dataset, "__len__")):
        raise ValueError(
            "from_huggingface takes a datasets.Dataset (not a streamed one), such as "
            f"datasets.load_dataset(..., split='train') gives, not a {_kind(dataset)}."
        )
    chosen = choose(list(names), client_column, columns)
    wanted = {client_column, *(name for group in chosen.values() for name in _listed(group))}
    table = dataset.select_columns([n for n in names if n in wanted]).with_format("arrow")[:]
    ids, clients = _arrow_ids(table.column(client_column), client_column)
    given, used = given_categories(categories, list(names)), {}

    def read(name: str) -> np.ndarray:
        column = table.column(name)
        own = getattr(dataset.features[name], "names", None)  # of a ClassLabel
        if own is not None:
            used[name] = tuple(own)
        if name not in given:
            return _of_arrow(column, name)
        _refuse_missing(column, name)
        used[name] = given[name]
        values = column.to_pylist()
        if own is not None:
            values = [own[value] if value >= 0 else value for value in values]
        return numbered(values, used[name], name)

    return stacked_columns(chosen, read), ids, clients, used


def choose(
    names: list[Any], client_column: str, columns: Columns | None
) -> Mapping[str, str | Sequence[str]]:
    """Array name -> its column or columns, which all exist."""
    there = set(names)
    if len(there) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"Two columns have the name {twice!r}; names must be unique.")
    if client_column not in there:
        raise ValueError(unknown("client column", client_column, map(str, names)))
    if columns is None:
        columns = [name for name in names if name != client_column]
    if isinstance(columns, str):
        columns = [columns]
    chosen = columns if isinstance(columns, Mapping) else {name: name for name in columns}
    if not chosen:
        raise ValueError(
            "The client column is the only column; the examples need at least one more."
        )
    for array, group in chosen.items():
        if not isinstance(array, str):
            raise ValueError(f"Array names must be text, but a column has the name {array!r}.")
        for name in _listed(group):
            if name not in there:
                raise ValueError(unknown("column", name, map(str, names)))
    return chosen


def stacked_columns(
    chosen: Mapping[str, str | Sequence[str]], read: Callable[[str], np.ndarray]
) -> dict[str, np.ndarray]:
    """Array name -> its column, or its columns side by side [num_rows, num_columns]."""
    arrays = {}
    for array, group in chosen.items():
        parts = [read(name) for name in _listed(group)]
        for name, part in zip(_listed(group), parts, strict=True):
            if not isinstance(group, str) and np.ndim(part[0]):
                raise ValueError(
                    f"The array {array!r} joins columns of single numbers, but the column "
                    f"{name!r} has shape {list(np.shape(part[0]))} in each row."
                )
        arrays[array] = parts[0] if isinstance(group, str) else np.stack(parts, axis=1)
    return arrays


def _of_series(series: Any, name: str) -> np.ndarray:
    """A column of a frame."""
    _refuse_missing(series, name)
    values = series.to_numpy()
    if values.dtype.kind == "O" and not isinstance(values[0], str):
        values = _of_objects(values, name)
    return _numbers(values, name, "categories={{{0!r}: [...]}}")


def _of_objects(values: np.ndarray, name: str) -> np.ndarray:
    """A column whose rows are lists or arrays, which must be of one shape."""
    rows = [np.asarray(value) for value in values]
    for place, row in enumerate(rows):
        if row.shape != rows[0].shape:
            raise ValueError(_ragged(name, rows[0].shape, place, row.shape))
    return np.stack(rows)


def arrow_column(column: Any, name: str, *, gaps: bool = False) -> Any:
    """A column of an Arrow table: an array, or a list for a transform.

    Text (also as categories), bytes, lists of text and arrays of unequal lengths become lists;
    dates and times NumPy's.

    Args:
      column: of the table.
      name: of the column.
      gaps: give missing numbers and truth values as NaN, missing text as None and missing dates as
        NaT; otherwise they are refused.

    Raises:
      ValueError: if a value is missing or has another type.
    """
    import pyarrow as arrow  # noqa: PLC0415

    kind = column.type
    is_number = arrow.types.is_primitive(kind) and not arrow.types.is_temporal(kind)
    if gaps and (is_number or arrow.types.is_null(kind)):
        return _numbers_with_gaps(column, name) if is_number else [None] * len(column)
    if not (gaps and (_is_text(kind) or arrow.types.is_dictionary(kind)
                      or arrow.types.is_temporal(kind))):
        _refuse_missing(column, name)
    if arrow.types.is_dictionary(kind):
        if not _is_text(kind.value_type):
            return arrow_column(column.cast(kind.value_type), name, gaps=gaps)
        values = [value for chunk in column.chunks for value in _of_categories(chunk)]
        if None in values and not gaps:
            raise ValueError(_missing(name, values.index(None)))
        return values
    if _is_text(kind):
        return column.to_pylist()
    if arrow.types.is_temporal(kind) and not arrow.types.is_time(kind):
        return column.to_numpy()
    ragged = _lists(column, name) if _is_list(kind) else None
    return _of_arrow(column, name, encode=None) if ragged is None else ragged


def _is_list(kind: Any) -> bool:
    import pyarrow as arrow  # noqa: PLC0415

    return any(test(kind) for test in (
        arrow.types.is_list, arrow.types.is_large_list, arrow.types.is_fixed_size_list,
    ))


def _is_text(kind: Any) -> bool:
    """Whether a type of Arrow's is text or bytes."""
    import pyarrow as arrow  # noqa: PLC0415

    return any(test(kind) for test in (
        arrow.types.is_string, arrow.types.is_large_string, arrow.types.is_string_view,
        arrow.types.is_binary, arrow.types.is_large_binary, arrow.types.is_binary_view,
        arrow.types.is_fixed_size_binary,
    ))


def _of_categories(chunk: Any) -> Iterator[Any]:
    """The values that codes stand for; equal ones are one object, as a long one may come often."""
    words = chunk.dictionary.to_pylist()
    return (None if code is None else words[code] for code in chunk.indices.to_pylist())


def _numbers_with_gaps(column: Any, name: str) -> np.ndarray:
    """Numbers or truth values of an Arrow table; those with gaps as floats with NaN."""
    import pyarrow as arrow  # noqa: PLC0415

    if not column.null_count:
        values = column.to_numpy()
    elif arrow.types.is_floating(column.type):
        values = column.to_numpy(zero_copy_only=False)
    else:
        values = column.cast(arrow.float64()).to_numpy(zero_copy_only=False)
    if values.dtype.kind == "f" and np.isinf(values).any():
        row = int(np.isinf(values).argmax())
        raise ValueError(
            f"The column {name!r} holds infinity, first in row {row}. Replace or remove such rows."
        )
    return values


def _lists(column: Any, name: str) -> list[Any] | None:
    """Lists of text, or arrays of unequal lengths; None for other lists."""
    import pyarrow as arrow  # noqa: PLC0415

    kind = column.type.value_type
    if arrow.types.is_dictionary(kind) or _is_text(kind):
        rows = column.to_pylist()
        for row, values in enumerate(rows):
            if None in values:
                raise ValueError(_missing(name, row))
        return rows
    if arrow.types.is_primitive(kind) and not arrow.types.is_fixed_size_list(column.type):
        rows = [value.values.to_numpy(zero_copy_only=False) for value in column]
        if len({len(row) for row in rows}) > 1 and all(row.dtype.kind in "biuf" for row in rows):
            return rows
    return None


def _of_arrow(
    column: Any, name: str, encode: str | None = (
        "categories={{{0!r}: [...]}} (or, before it is split, dataset.class_encode_column({0!r}))"
    ),
) -> np.ndarray:
    """A column of an Arrow table, without Python objects (except images, which are decoded)."""
    _refuse_missing(column, name)
    chunks: list[np.ndarray] = []
    start = 0
    for chunk in column.chunks:
        if len(chunk):
            values = _of_chunk(chunk, name, lambda place, start=start: start + place)
            if chunks and values.dtype != chunks[0].dtype:  # of images; other columns have one type
                raise ValueError(_mixed(name, chunks[0][0], start, values[0]))
            if chunks and values.shape[1:] != chunks[0].shape[1:]:
                raise ValueError(_ragged(name, chunks[0].shape[1:], start, values.shape[1:]))
            chunks.append(values)
            start += len(chunk)
    values = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    return _numbers(values, name, encode)


def _of_chunk(chunk: Any, name: str, row_of: Callable[[int], int]) -> np.ndarray:
    """An Arrow array; `row_of` says to which row of the column an element belongs."""
    import pyarrow as arrow  # noqa: PLC0415 - there if a data set of Arrow's is

    kind = chunk.type
    if isinstance(kind, arrow.BaseExtensionType):  # `datasets.Array2D` and the like
        return _of_chunk(chunk.storage, name, row_of)
    if is_image(kind):
        return _images(chunk, name, row_of)
    if not _is_list(kind):
        return chunk.to_numpy(zero_copy_only=False)
    lengths = chunk.value_lengths().to_numpy(zero_copy_only=False)
    length = int(lengths[0])
    odd = np.flatnonzero(lengths != length)
    if odd.size:
        raise ValueError(_ragged(name, [length], row_of(int(odd[0])), [int(lengths[odd[0]])]))
    inner = chunk.flatten()
    if inner.null_count:
        place = int(inner.is_null().to_numpy(zero_copy_only=False).argmax())
        raise ValueError(_missing(name, row_of(place // length)))
    if not length:
        return np.zeros((len(chunk), 0))
    values = _of_chunk(inner, name, lambda place: row_of(place // length))
    return values.reshape(len(chunk), length, *values.shape[1:])


def _images(chunk: Any, name: str, row_of: Callable[[int], int]) -> np.ndarray:
    """Encoded images [num_rows, height, width] or [num_rows, height, width, channels]."""
    images = np.zeros(0)
    most = most_bytes(chunk.nbytes, len(chunk))
    contents = zip(chunk.field("bytes"), chunk.field("path"), strict=True)
    for place, (content, path) in enumerate(contents):
        with opened_image(content.as_py(), path.as_py(), name, row_of(place), most) as image:
            pixels = pixels_of(image)
        if not place:
            images = np.empty((len(chunk), *pixels.shape), pixels.dtype)
        if pixels.dtype != images.dtype or pixels.ndim != images.ndim - 1:
            raise ValueError(_mixed(name, images[0], row_of(place), pixels))
        if pixels.shape != images.shape[1:]:
            raise ValueError(_ragged(name, images.shape[1:], row_of(place), pixels.shape))
        images[place] = pixels
    return images


def _arrow_ids(column: Any, name: str) -> tuple[np.ndarray, np.ndarray | None]:
    """A client column: codes and the names that they stand for, or the ids and None."""
    import pyarrow as arrow  # noqa: PLC0415

    _refuse_missing(column, name)
    if arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type):
        encoded = column.combine_chunks().dictionary_encode()
        if isinstance(encoded, arrow.ChunkedArray):
            encoded = encoded.combine_chunks()
        names = np.array(encoded.dictionary.to_pylist(), dtype=str)
        return encoded.indices.to_numpy(zero_copy_only=False), names
    return column.to_numpy(), None


def _numbers(values: np.ndarray, name: str, encode: str | None) -> np.ndarray:
    """The values, if a model can take them; `encode` is how a user makes numbers of text."""
    if values.dtype.kind == "O" or values.dtype.kind in "UST":
        cure = "Convert it to numbers" if encode is None else (
            f"Encode its values with {encode.format(name)} and the test set's with "
            "categories=train; the codes have no order, so one-hot encode them in the model "
            "(jax.nn.one_hot). Or "
            "make token ids (fedax.Vocabulary)"
        )
        raise ValueError(
            f"The column {name!r} holds {_held(values)}, which a model cannot use. {cure}, or "
            "choose the columns to use: columns=[...]."
        )
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"The column {name!r} holds {values.dtype}, which a model cannot use. Convert it to "
            "numbers, or choose the columns to use: columns=[...]."
        )
    if values.dtype.kind == "f":
        finite = np.isfinite(values)
        if not finite.all():
            row = int(np.argwhere(~finite)[0][0])
            if np.isnan(values[row]).any():
                raise ValueError(_missing(name, row))
            raise ValueError(
                f"The column {name!r} holds infinity, first in row {row}. Replace or remove such "
                "rows."
            )
    return values


def _held(values: np.ndarray) -> str:
    """Values that are not numbers, in words."""
    if values.dtype.kind == "O" and not isinstance(values[0], str):
        return f"objects of type {type(values[0]).__name__}"
    return "text"


def _refuse_missing(column: Any, name: str) -> None:
    """Raises a clear error if a column of pandas, polars or Arrow has a null."""
    nulls = column.isna() if hasattr(column, "isna") else column.is_null()
    nulls = np.asarray(nulls.to_numpy(), bool)
    if not len(nulls):
        raise ValueError("A data set needs at least one row, but none was given.")
    if nulls.any():
        raise ValueError(_missing(name, int(nulls.argmax())))


def _missing(name: str, row: int) -> str:
    return (
        f"The column {name!r} has a missing value (null or NaN), first in row {row}. Fill in "
        "missing values or leave out their rows."
    )


def _ragged(name: str, first: Sequence[int], row: int, shape: Sequence[int]) -> str:
    return (
        f"All rows of the column {name!r} must have the same shape, but the first has "
        f"{list(first)} and row {row} has {list(shape)}. Cut or pad them "
        "(images: resize them)."
    )


def _mixed(name: str, first: np.ndarray, row: int, other: np.ndarray) -> str:
    return (
        f"The images of the column {name!r} have different modes: the first is "
        f"{kind_of_pixels(first)}, the one in row {row} is {kind_of_pixels(other)}. Convert all to "
        "one, such as RGB."
    )


def _listed(group: str | Sequence[str]) -> Sequence[str]:
    return [group] if isinstance(group, str) else group


def _kind(value: Any) -> str:
    return f"{type(value).__module__.split('.')[0]}.{type(value).__name__}"
