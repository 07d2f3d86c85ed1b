"""Inference engines behind one protocol (:mod:`trainers.engines.base`): the embedded torch engine, a scripted one."""
