"""The command line: ``riverrun``, or ``python -m riverrun``.

::

    riverrun checkpoints PATH                       what lies there
    riverrun checkpoints PATH --verify              whether it is whole
    riverrun checkpoints PATH NUMBER                what is in a checkpoint
    riverrun checkpoints PATH NUMBER --output NAME  rows of an output; or of any --state
    riverrun kernels                                compile what runs need, before they do
    riverrun version

With ``--json``, what is told is for programs. Exit codes: 0; 1 where verifying found damage; 2 for an error,
which is told with its hint and without a traceback. Looking at a path changes nothing there.
"""

from riverrun.cli.commands import main

__all__ = ["main"]
