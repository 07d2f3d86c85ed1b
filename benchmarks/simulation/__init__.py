"""An engine without a model, and an event loop on simulated time: for benchmarks of the collector, and for tests."""
