"""The contest of `tuner bench`: what a lookup gives, in paired rounds with torch's library and with other tuners."""
