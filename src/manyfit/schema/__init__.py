"""What can be asked: one dataclass a choice of a configuration group; a value is checked where it is declared."""
