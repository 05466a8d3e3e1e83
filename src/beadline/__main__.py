"""`python -m beadline` is `beadline`, for where the script is not on the PATH."""

from beadline.cli import main

if __name__ == "__main__":
    main()
