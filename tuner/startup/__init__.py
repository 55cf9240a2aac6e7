"""What is put first on the path of a program: `sitecustomize`, which Python runs as it starts."""
