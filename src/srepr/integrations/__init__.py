"""Integrations with other training libraries: Lightning, Hugging Face, scikit-learn.

Each module imports the library it is named after; this package imports none of them.
"""
