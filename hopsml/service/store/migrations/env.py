"""Alembic's entry: the connection comes from ``store.upgrade``, which holds a lock on the database meanwhile."""

from alembic import context

from hopsml.service.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
