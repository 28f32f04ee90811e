"""What an operator sees and does at run time."""
