"""Remote stores: one adapter, whose calls run in helper processes that are killed at their deadline.

``adapter`` is the FileSystem of every remote scheme, ``store`` the interface of a store, which ``hdfs``, ``webhdfs``
and ``fsspec`` implement. ``pool`` lends helper processes, ``server`` runs in one, ``channel`` carries the messages
between the two.
"""
