"""The trainers that :func:`trainers.make` knows without other packages, one file each."""
