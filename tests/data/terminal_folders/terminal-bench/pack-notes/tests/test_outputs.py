"""Tests of /app/notes.tar.gz, and a summary of them in pytest's form."""

import tarfile

result = "FAILED test_outputs.py::test_archive - AssertionError"
try:
    with tarfile.open("/app/notes.tar.gz") as archive:
        texts = {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isfile()}
    if texts == {"shopping.txt": b"milk\n", "calls.txt": b"call Ana\n"}:
        result = "PASSED test_outputs.py::test_archive"
except (OSError, tarfile.TarError):
    pass
print("=========== short test summary info ===========", result, sep="\n")
