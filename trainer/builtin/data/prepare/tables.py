"""Files of columns: Parquet, and Arrow's streams as Hugging Face's `datasets` saves them."""

from __future__ import annotations

from typing import Any

from trainer.builtin.data.prepare.inputs import File
from trainer.errors import DataError

_END = b"\xff\xff\xff\xff\0\0\0\0"
"""https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format"""


def parquet_of(file: File) -> Any:
    """Return pyarrow's reader. Raises `DataError` for another file."""
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file.open())
    except pyarrow.ArrowException as error:
        raise DataError("this is not a Parquet file", f"{file.place}: {error}", "repair or omit it") from error


def arrow_of(file: File) -> Any:
    """Return pyarrow's reader of a stream. Raises `DataError` for one whose writer was cut off: what it lacks would be
    missing without a word."""
    from pyarrow import ipc

    reader = ipc.open_stream(file.open())
    if file.compression is None:
        with file.open(max(0, file.size - len(_END))) as tail:
            if tail.read() != _END:
                cure = "save the data set again, or omit the file"
                raise DataError("an Arrow stream has no end: its writer was cut off", file.place, cure)
    return reader
