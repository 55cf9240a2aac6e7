"""The database of trials and winners; knows neither torch nor triton."""
