"""The privacy card: what it states, its page, and a version at a glance."""
