"""Algorithms: functions of collections to collections, written with the public API alone.

Users find them as `riverrun.graphs` and `riverrun.learning`. That nothing here needs more than public names is a house
rule (``tools/check_imports.py``): the proof that these suffice.
"""
