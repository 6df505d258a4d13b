"""One module per command of the command line.

Each has ``add_arguments(parser)`` and ``run(args) -> int`` (the exit status). Results go to stdout, everything else
to stderr; bad input is raised as ``InputError``. ``codegen.cli`` holds the table that names them.
"""
