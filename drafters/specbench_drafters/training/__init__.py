"""Trainable forms of the methods, by name: what a recipe's ``method`` may be."""
