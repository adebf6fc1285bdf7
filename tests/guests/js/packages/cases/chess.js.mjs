import { Chess } from 'chess.js';
export default () => {
  const game = new Chess();
  for (const move of ['e4', 'e5', 'Qh5', 'Nc6', 'Bc4', 'Nf6', 'Qxf7#']) game.move(move);
  let message = '';
  try {
    new Chess().move('e5');
  } catch (error) {
    message = error.message;
  }
  return [game.isCheckmate(), game.fen(), game.pgn(), new Chess().moves().length, message];
};
