"""podrun, with CPUs of the hosts in place of the chips of a TPU VM; it looks at gcloud as often as it can."""

from podrun.launcher.cli.root import main
from podrun.launcher.engines.tpu import provision
from podrun.launcher.inventory import find

find._PLATFORMS["tpu"] = "cpu"
provision.PAUSE = 0.2
main(prog_name="podrun")
