"""The gateway: a server that takes messages for many sessions and runs agents through lanes. Extra `gateway`."""
