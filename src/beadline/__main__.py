"""`python -m beadline` is the same as `beadline`, for when the script is not on the PATH."""

from beadline.cli import main

if __name__ == "__main__":
    main()
