"""The gateway's database (`gateway.threads`): connections, tables, migrations. Imported only where one is set."""
