from service.api.http.access_log import AccessLog
from service.server.early import EarlyAnswers


def early_app(service, metrics, **options):
    """Return the app that a server has at its port."""
    return AccessLog(EarlyAnswers(service, **options), metrics=metrics)
