"""What a database holds, as one HTML file to look at."""
