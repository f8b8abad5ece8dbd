"""The connection to a study's SQLite file."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from mupscale.studies.storage import _connected


def test_a_connection_serves_every_thread(tmp_path):
    """The pool lends the connection that one thread made to another."""
    with closing(_connected(tmp_path / "study.db")) as connection, ThreadPoolExecutor(1) as pool:
        assert pool.submit(connection.execute, "SELECT 1").result().fetchone() == (1,)
