"""One reader for files of rows: csv, tsv, json, jsonl, parquet, arrow, feather and plain text, compressed or not."""
