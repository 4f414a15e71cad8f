"""The kernel IR: typed statements over scalar expressions, between the families and the dialects.

What comes in: expressions and statements that families build through a writer. What goes out: the
text of a kernel, which a dialect spells node by node (``render``), and what is wrong with one that
is not legal (``verify``). ``nodes`` lists every statement, ``values`` what only stands in kernels;
``text`` prints both as they are and reads them back.
"""
