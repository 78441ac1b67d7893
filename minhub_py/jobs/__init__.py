"""Batch jobs: process the rows of .csv, .tsv, .jsonl, .parquet and .txt files and add the results
as columns.

    formats        reading and writing of each file format, in batches of rows
    sources        input files: expansion of patterns, validation, texts and group keys
    task           an operation on texts: its results and notes
    tasks          the operations: score, generate, words, and those of text encoders
    encoder_tasks  embed, classify, rerank, masked, answer
    chunks         durable storage of each chunk's results
    executors      computation in this process or in several processes
    ray_executor   computation on a Ray cluster
    job            planning, resuming, writing the output

Rows are divided into chunks of a fixed size or, if the rows are words, of complete texts. The
results of a chunk depend only on the chunk and are written atomically to one part file, so a chunk
that is computed again after a kill produces the same part. When all parts are complete, they are
merged with the input rows in order.
"""
