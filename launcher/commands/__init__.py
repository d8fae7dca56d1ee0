"""What the commands of podrun do, besides `run`: one file each."""
