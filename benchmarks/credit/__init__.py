"""CreditBench: which advantage estimator gives turns the credit that they have? See :mod:`.__main__`."""
