"""The commands, one file each; the name of the file is the name of the command.

The docstring of a file is the help of its command. The file says where the command stands in ``--help`` (``PLACE``; hundreds
are groups), what its arguments are (``add_arguments``), and how it runs (``execute``). Importing all of them has to be fast,
so they import what they need to run when they run. A command of an installed package is an entry point of the group
``continual_petl.commands`` that names such a file.
"""
