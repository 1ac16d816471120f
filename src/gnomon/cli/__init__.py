"""The command line: parse, call, print."""

import gc

gc.set_threshold(200_000)  # Looking for circles after every 700 objects takes a tenth of a short command.
