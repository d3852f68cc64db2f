"""The command line. Each command has its own module, which is imported only when the command is called."""
