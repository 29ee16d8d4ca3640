"""The command line: ``riverrun``, or ``python -m riverrun``.

::

    riverrun checkpoints PATH                       list the checkpoints, the log and other files at a path
    riverrun checkpoints PATH --verify              read every file, and say which are damaged
    riverrun checkpoints PATH NUMBER                show the outputs and states of a checkpoint
    riverrun checkpoints PATH NUMBER --name NAME    show rows of an output, of a shared state, or of a step
    riverrun kernels                                compile the kernels that runs need, before the first run
    riverrun version

With ``--json``, the report is JSON for programs. Exit codes: 0; 1 where verifying found damage; 2 for an error, which
is printed with its hint and without a traceback. Looking at a path changes nothing there.
"""

from riverrun.cli.commands import main

__all__ = ["main"]
