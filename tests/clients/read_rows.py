"""Reads rows that `rollout-host export` wrote, with the packages that trainers use for data sets.

    python read_rows.py ROWS.parquet ROWS.jsonl

The Parquet file is read by pyarrow and by datasets, the JSON Lines by Python itself and by datasets. All must be equal
to the last bit, and are printed as one line of JSON, with every float as the sixteen hex digits of its bits.
"""

import json
import struct
import sys
import tempfile

import datasets
import pyarrow.parquet


def exact(value: object) -> object:
    """Returns the value with floats as their bits."""
    if isinstance(value, float):
        return struct.pack(">d", value).hex()
    if isinstance(value, list):
        return [exact(element) for element in value]
    if isinstance(value, dict):
        return {name: exact(member) for name, member in value.items()}
    return value


def main() -> None:
    """Reads both files."""
    parquet, lines = sys.argv[1:]
    with tempfile.TemporaryDirectory() as cache:
        loaded = {
            form: datasets.load_dataset(form, data_files=path, split="train", cache_dir=cache)
            for form, path in [("parquet", parquet), ("json", lines)]
        }
        read = {form: list(rows) for form, rows in loaded.items()}
        features = loaded["parquet"].features
        # The access of a trainer with torch or numpy.
        columns = loaded["parquet"].select_columns(["input_ids", "assistant_masks"])
        lengths = [
            (len(row["input_ids"]), int(row["assistant_masks"].sum()))
            for row in columns.filter(lambda row: row["input_ids"] is not None).with_format("numpy")
        ]
    file = pyarrow.parquet.ParquetFile(parquet)
    read["pyarrow"] = file.read().to_pylist()
    with open(lines) as text:
        read["lines"] = [json.loads(line) for line in text]
    rows = exact(read["pyarrow"])
    for reader, other in read.items():
        assert exact(other) == rows, f"{reader} reads {exact(other)}, pyarrow {rows}"
    assert list(features) == [column.name for column in file.schema_arrow]
    print(json.dumps({"rows": rows, "groups": file.num_row_groups, "lengths": lengths}))


if __name__ == "__main__":
    main()
