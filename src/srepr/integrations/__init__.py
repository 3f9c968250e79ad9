"""The method inside the training loops of other libraries: Lightning, Hugging Face, scikit-learn.

Each module imports the library it is named after, and nothing here imports them.
"""
