//! Where the nodes of a cluster listen, and by which addresses they, clients and observers find them, on each kind of
//! network.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::{
    client::Api,
    config::{NodeAddress, TOKEN},
    links::{Flow, Namespaces, Network, NetworkKind, Party, Proxies, Route, namespaces},
    ports::free_port,
};

pub struct Layout {
    /// Where the nodes listen.
    pub addresses: Vec<NodeAddress>,
    pub network: Option<Network>,
}

impl Layout {
    pub fn new(kind: NetworkKind, nodes: u16) -> Layout {
        let ids = 1..=nodes;
        let on_loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let free = |id| NodeAddress { id, http: on_loopback(free_port()), peer: on_loopback(free_port()) };
        match kind {
            NetworkKind::Direct => Layout { addresses: ids.map(free).collect(), network: None },
            NetworkKind::Proxies => {
                let addresses: Vec<NodeAddress> = ids.map(free).collect();
                let proxies = Proxies::start(&routes(&addresses));
                Layout { addresses, network: Some(Network::Proxies(proxies)) }
            }
            NetworkKind::Namespaces => {
                let made = Namespaces::start(nodes);
                let at = |id, port| SocketAddr::from((made.node_address(id), port));
                let addresses = ids.map(|id| NodeAddress {
                    id,
                    http: at(id, namespaces::HTTP_PORT),
                    peer: at(id, namespaces::PEER_PORT),
                });
                Layout { addresses: addresses.collect(), network: Some(Network::Namespaces(made)) }
            }
        }
    }

    /// The addresses by which a node dials its peers, and its own.
    pub fn as_seen_by(&self, id: u16) -> Vec<NodeAddress> {
        let mut seen = self.addresses.clone();
        if let Some(Network::Proxies(proxies)) = &self.network {
            for address in seen.iter_mut().filter(|address| address.id != id) {
                address.peer.set_port(proxies.port(Flow::between_nodes(id, address.id)));
            }
        }
        seen
    }

    /// A client of a node that nothing disturbs.
    pub fn observer(&self, id: u16) -> Api {
        let url = self.url(id);
        match &self.network {
            Some(Network::Namespaces(made)) => Api::of_stranger(url, TOKEN, IpAddr::V4(made.observers_address())),
            Some(Network::Proxies(_)) | None => Api::new(url),
        }
    }

    /// A client of a node by a link that can fail, if the network has any.
    pub fn client(&self, id: u16) -> Api {
        match &self.network {
            Some(Network::Namespaces(made)) => {
                Api::of_stranger(self.url(id), TOKEN, IpAddr::V4(made.clients_address()))
            }
            Some(Network::Proxies(proxies)) => {
                let port = proxies.port(Flow::new(Party::Clients, Party::Node(id)));
                Api::new(format!("http://127.0.0.1:{port}"))
            }
            None => Api::new(self.url(id)),
        }
    }

    fn url(&self, id: u16) -> String {
        format!("http://{}", self.addresses[usize::from(id) - 1].http)
    }
}

/// Every node dials every other one, and clients dial all.
fn routes(addresses: &[NodeAddress]) -> Vec<Route> {
    let mut routes = Vec::new();
    for to in addresses {
        routes.push(Route { flow: Flow::new(Party::Clients, Party::Node(to.id)), target: to.http });
        for from in addresses.iter().filter(|from| from.id != to.id) {
            routes.push(Route { flow: Flow::between_nodes(from.id, to.id), target: to.peer });
        }
    }
    routes
}
