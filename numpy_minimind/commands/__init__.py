"""One module a command: ``add_arguments(parser)``, ``run(args) -> dict``, ``render(result) -> str``.

cli.py lists them, and imports the one that is typed.
"""
