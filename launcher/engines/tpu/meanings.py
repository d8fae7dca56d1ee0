"""The meanings of Google's messages that its two APIs for TPUs share, with remedies. PURE."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from podrun.runtime.contract import UnavailableError, UserError


@dataclass(frozen=True)
class Meaning:
    """The meaning of a message."""

    pattern: str
    kind: type[Exception]
    text: str
    verbs: Collection[str] = ()
    """The verbs whose errors it explains; empty: all verbs."""


NETWORK = (
    Meaning(
        r"Max retries exceeded|name resolution|nodename nor servname|problem connecting|Unable to find the server"
        r"|crashed \((Connection|Timeout|SSL|Proxy|Transport)\w*|Network is unreachable|Connection refused",
        UnavailableError,
        "gcloud cannot reach Google; look at the network and the proxy of this machine, then try again",
    ),
)
LOGIN = (
    Meaning(
        r"active account selected|auth tokens|Reauthentication|invalid_grant|UNAUTHENTICATED|valid credentials",
        UserError,
        "gcloud is not logged in, or its login has expired; run `gcloud auth login`",
    ),
    Meaning(
        r"(attribute|required property) \[project\]|valid project ID",
        UserError,
        "gcloud does not know the project; give --project PROJECT, or run `gcloud config set project PROJECT`",
    ),
    Meaning(
        r"rateLimitExceeded|RATE_LIMIT_EXCEEDED|requests per minute",
        UnavailableError,
        "the project's quota of requests is used up for now; wait a minute, then try again",
    ),
)
MACHINES = (
    # The codes and messages of machines: https://docs.cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation
    # and the Google provider of kubernetes/autoscaler (gce/autoscaling_gce_client.go), which reads the same ones.
    Meaning(
        r"(ZONE_)?RESOURCE_POOL_EXHAUSTED|does not have enough resources|no more capacity|STOCKOUT",
        UnavailableError,
        "there are no free machines of this type in {zone} now; another zone (`podrun tpu keep --zones A,B,C` tries "
        "several), a smaller type or another class of cost may have some",
    ),
    # https://docs.cloud.google.com/tpu/docs/quota: chips count per region and generation, and spot ones apart
    Meaning(
        r"QUOTA_EXCEEDED|Quota '\S+' exceeded|TPUS_PER_TPU_FAMILY",
        UnavailableError,
        "the project has no quota of Compute Engine left for it in {region}; it is another one than that of the Cloud TPU "
        "API: delete what is not needed (`podrun tpu list --zone {zone}{shown}`), or ask Google for more: "
        "https://docs.cloud.google.com/tpu/docs/quota",
    ),
    # https://docs.cloud.google.com/compute/docs/ip-addresses/configure-static-external-ip-address#disableexternalip
    Meaning(
        r"constraints/compute\.vmExternalIpAccess",
        UserError,
        "your organization allows no external addresses; add --internal-ips, and call podrun on a machine of that network. "
        "The machines then need Cloud NAT in {region} to reach the internet",
    ),
    # https://docs.cloud.google.com/compute/shielded-vm/docs/shielded-vm#organization-constraint
    Meaning(
        r"constraints/compute\.requireShieldedVm",
        UserError,
        "your organization asks for Shielded VMs; add --gcloud shielded-secure-boot",
    ),
    # https://docs.cloud.google.com/resource-manager/docs/organization-policy/defining-locations
    Meaning(
        r"constraints/gcp\.resourceLocations",
        UserError,
        "your organization allows no resources in {region}; choose a zone that it allows",
    ),
    # https://docs.cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints
    Meaning(
        r"[Cc]onstraint '?constraints/",
        UserError,
        "a policy of your organization forbids it; the message names it, and whoever runs the organization can change it",
    ),
    # https://docs.cloud.google.com/vpc/docs/vpc#default-network: organizations often create projects without one
    Meaning(
        r"networks/default'?\]? (was )?not found|[Nn]etwork '?\"?default'?\"? (was )?(not found|does not exist)",
        UserError,
        "the project has no network `default`; name its own with --network, and with --subnetwork if it has no "
        "automatic ones: `gcloud compute networks list{project}` lists them",
    ),
    Meaning(
        r"subnetworks/\S+ (was )?not found|must specify a subnet|custom subnet mode",
        UserError,
        "the network needs a subnetwork in {region}; give --subnetwork: "
        "`gcloud compute networks subnets list --filter=region:{region}{project}` lists them",
    ),
    Meaning(
        r"networks/\S+ (was )?not found",
        UserError,
        "there is no such network; `gcloud compute networks list{project}` lists those of the project",
    ),
    Meaning(
        r"IP_SPACE_EXHAUSTED",
        UserError,
        "the subnetwork has no free addresses left; give another one with --subnetwork, or make its range larger",
    ),
    # https://docs.cloud.google.com/compute/docs/access/service-accounts#user-role
    Meaning(
        r"does not have access to service account|serviceAccounts\.actAs|iam\.serviceAccountUser",
        UserError,
        "your account may not use the machines' service account; whoever runs the project can give it the role "
        "roles/iam.serviceAccountUser on that account, or name another one with --service-account",
    ),
    Meaning(
        r"[Ss]ervice account '?\S+'? (does not exist|was not found|is disabled)|serviceAccounts/\S+ (was )?not found",
        UserError,
        "there is no such service account, or it is disabled; `gcloud iam service-accounts list{project}` lists them: give "
        "one with --service-account",
    ),
    # https://docs.cloud.google.com/compute/docs/instances/reservations-consume
    Meaning(
        r"Specified reservations? .*do(es)? not exist|reservations/\S+ (was )?not found",
        UserError,
        "there is no such reservation in {zone}; `gcloud compute reservations list --filter=zone:{zone}{project}` lists "
        "them; one of another project is projects/PROJECT/reservations/NAME",
    ),
    Meaning(
        r"reservation to be in READY state",
        UnavailableError,
        "the reservation has not begun yet; `gcloud compute reservations list{project}` says when it does",
    ),
    Meaning(
        r"does not have available resources for the request|No available resources in specified reservations",
        UnavailableError,
        "the reservation has no free machines of this type; delete what uses it (`podrun tpu list --zone {zone}{shown}`)",
    ),
    # https://docs.cloud.google.com/tpu/docs/tpus-and-migs: the topologies of each generation
    Meaning(
        r"Unsupported TPU configuration|accelerator.?[Tt]opology",
        UserError,
        "Google has no TPU of this topology; `podrun slices` lists those that it documents: leave "
        "--topology out, or give one of them",
    ),
    # https://docs.cloud.google.com/tpu/docs/regions-zones
    Meaning(
        r"[Mm]achine type .*(does not exist|not found)|machineTypes/\S+ (was )?(not found|does not exist)",
        UserError,
        "{zone} has no machines of this type; `gcloud compute machine-types list --filter=zone:{zone}{project}` lists "
        "its types, and https://docs.cloud.google.com/tpu/docs/regions-zones the zones of each",
    ),
    Meaning(
        r"not allowed to use the machine type",
        UserError,
        "Google has not opened this type to the project; ask your contact at Google, or take another type",
    ),
    Meaning(
        r"images/\S+ (was )?not found",
        UserError,
        "there is no such image; `gcloud compute images list --project=ubuntu-os-accelerator-images --no-standard-images` "
        "lists what --runtime-version may be",
    ),
    Meaning(
        r"disks/\S+ (was )?not found",
        UserError,
        "there is no such disk in {zone}; `gcloud compute disks list --filter=zone:{zone}{project}` lists them",
    ),
)
"""Messages about machines, which come from gcloud, or from Compute Engine about a machine that it could not create."""
