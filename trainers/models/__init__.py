"""Models and tokenizers: from a folder or name to weights, and new ones."""
