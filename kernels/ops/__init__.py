"""The ops that users call: arguments checked, a config looked up, a kernel launched."""
