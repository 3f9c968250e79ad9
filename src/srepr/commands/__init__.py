"""The verbs: fields are arguments, the docstring is the help, `run` is one library call and then text out.

torch is imported only where a verb runs, so that `srepr VERB --help` answers at once.
"""
