"""The machine code of every kernel, compiled and read without a GPU: `python -m fuzz.compiled --arch 80 90`."""
