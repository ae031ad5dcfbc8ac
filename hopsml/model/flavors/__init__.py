"""Kinds of models: how one is saved, and how it is called again. One file a framework, which alone imports it."""
