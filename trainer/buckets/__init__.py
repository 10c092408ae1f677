"""Objects under an S3 prefix, and where the shards of a data set are read from."""
