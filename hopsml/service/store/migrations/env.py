"""Alembic's entry point, with the connection of ``store.database``, whose transaction locks the database."""

from alembic import context

from hopsml.service.store.database import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
