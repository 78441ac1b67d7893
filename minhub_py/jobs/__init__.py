"""Whole files through a model: rows of .csv, .tsv, .jsonl, .parquet and .txt in, the same rows with results out.

    formats     reading and writing of each kind of file, a few rows at a time
    sources     files, folders and patterns -> the files to read; what they hold
    tasks       one entry a task: what is done with the texts of some rows
    parts       results on disk, durably, until all of them are there
    places      where the work is done: in this process, in several
    cluster     the same on a Ray cluster
    job         plan, resume, join
    cli         the part of `minhub score|generate` that deals with files

The rows are divided into chunks of a fixed size, or, where rows are words, of whole texts. A chunk's results depend on
the chunk alone, and are written as one part: under its number, atomically. So a chunk that is computed twice, as after
a kill, is the same part, and no row is lost or doubled. When every part is there they are joined with the input, in
order.
"""
