"""Reports: a whole run as JSON lines, and what can be made of them afterwards.

In come the rows of ``running``; out go files with a verdict that ``verify`` computes anew, tables,
badges, and what a backend says that it supports.
"""
