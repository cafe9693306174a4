"""The simulator: laneway run in one thread, in virtual time, from one seed."""
